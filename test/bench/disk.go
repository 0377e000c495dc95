package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// disk says what the folder's disk is like: how long it takes to make 2,300 bytes durable, which is
// about what etcd writes at a time.
func disk(dir string) (string, error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []float64
	for range 200 {
		begin := time.Now()
		if _, err := f.Write(make([]byte, 2300)); err != nil {
			return "", err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return "", err
		}
		took = append(took, time.Since(begin).Seconds())
	}
	return fmt.Sprintf("with an fdatasync of p50 %s, p99 %s", seconds(quantile(took, 0.5)), seconds(quantile(took, 0.99))), nil
}
