"""Collections: folders of documents, cut into passages and indexed for search.

`qa-index` writes one (`build`), a `Collection` searches it. What is always true here: a document's
`text[start:end]` is the passage; a collection's folder names a whole index or none, so a reader
never sees half of one; a file that cannot be read is named and skipped, and costs bounded time and
memory, because files are read in separate processes (`extract_main`).
"""
