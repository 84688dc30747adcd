"""The line that says where in its document a passage stands."""


def headings_over(title: str, heading: str) -> str:
    """A document's title and the headings over a passage, "" if there are none.

    A first heading that is the title is not repeated.

    Args:
        heading: The headings, joined by " > ".
    """
    if heading == title or heading.startswith(f"{title} > "):
        return heading
    return " > ".join(filter(None, (title, heading)))
