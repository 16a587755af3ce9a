"""Damaged files of every kind that is read: mutants of bytes and of structure give an answer or an error of ours."""
