"""Plans that were found before: the key of a question, the answers on disk, and when one still holds."""
