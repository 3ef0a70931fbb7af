"""The report of runs: one HTML page that opens without a server, with tables, CSV and a picture."""
