// Package fencetest holds the fences to their word against real servers: a leader that is stopped
// between its Check and its write is thawed after its successor has written, and each resource
// refuses what it writes then. It has tests and examples only.
package fencetest
