"""Plans that were found before: the cache key, the plans on disk, and when one of them still applies."""
