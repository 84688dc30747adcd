"""SQuAD files, and the questions that ship with the project."""
