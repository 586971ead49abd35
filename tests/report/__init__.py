"""Tests of the reports, on plans made by hand."""
