"""Tests of the command line, verb by verb."""
