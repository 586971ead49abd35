"""`lowtide.verify`, and `verify=True`: plain and planned steps compared bit by bit."""
