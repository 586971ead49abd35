"""Tests of the vocabulary: simulator, checker and text form, against an interpreter with real contents."""
