"""What a user calls: one file or folder per public verb."""
