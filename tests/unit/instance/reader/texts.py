"""Texts that trip programs up: many scripts, marks, joined emoji, controls, odd white space."""

from hypothesis import strategies as st

_PIECES = [
    *("the river", "Ada", "42", ".", "[SEP]", "</s>", " ", "\r\n", "\n\n", "\t", "\u00a0"),
    *("\x00", "\x1b", "\ufeff", "\u200b", "\u200d", "\ufffd", "\u2028", "\U0010ffff"),
    *("é", "e\u0301", "\u0301", "a\u0323\u0302", "ﬁ", "İ", "ß", "Å"),
    *("שלום", "\u05e9\u05b8", "مرحبا", "\u202e", "字", "東京", "각", "\u1112\u1161\u11ab"),
    *("\u0915\u094d\u0937\u093f", "\u0e01\u0e33", "\U0001d4b3", "𐎀", "😀", "👍🏽", "🇩🇪"),
    *("1\ufe0f\u20e3", "👩\u200d👩\u200d👧\u200d👦", "🏴\U000e0067\U000e0062\U000e0077\U000e007f"),
]

texts = st.lists(
    st.sampled_from(_PIECES) | st.characters(exclude_categories=["Cs"]), max_size=20
).map("".join)
"""Up to 20 pieces; no lone surrogates, which JSON in UTF-8 cannot hold."""
