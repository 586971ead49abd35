"""Tests of the documentation: its code, its commands, its claims about names and messages."""
