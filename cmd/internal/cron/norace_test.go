//go:build !race

package cron

// racing says that the race detector is on.
const racing = false
