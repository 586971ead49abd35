"""`lowtide demo`: a GPT-2 trained plainly and inside a budget, and every bit compared."""
