"""The test suite: a package, so that its folders may bear the names of the parts they test."""
