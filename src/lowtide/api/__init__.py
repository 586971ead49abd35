"""The public verbs: one file or folder per public verb."""
