module pqkeep

go 1.26
