"""What was planned and what happened, in words, tables and pictures: it reads records and needs no torch."""
