// Package examples runs what is in /examples for real: against `primacy serve`, with the
// interpreters of this machine. It has tests only.
package examples
