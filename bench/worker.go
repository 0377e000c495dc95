package main

const workerArg = "worker"

func workerMain(args []string) int { return 2 }
