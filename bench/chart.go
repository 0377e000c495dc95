package main

func drawing(r *Report) string { return "" }
