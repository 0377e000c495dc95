//go:build race

package cron

// racing says that the race detector is on: simulations are ten times slower then.
const racing = true
