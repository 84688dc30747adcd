"""The line that says where in its document a passage stands."""

SEPARATOR = " > "
"""Between headings, from the highest down."""


def headings_over(title: str, heading: str) -> str:
    """A document's title and the headings over a passage, "" if there are none.

    A first heading that is the title is not repeated.

    Args:
        heading: The headings, joined by " > ".
    """
    if heading == title or heading.startswith(title + SEPARATOR):
        return heading
    return SEPARATOR.join(filter(None, (title, heading)))
