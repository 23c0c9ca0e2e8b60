"""`format("stelae")`: a table as a source and a sink of Spark."""
