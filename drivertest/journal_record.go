package drivertest

var recordClauses = []Clause{}
