package safety

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Read reads what one or more workers wrote while they led name, and returns an interval from the
// first to the last sight of each token by each worker.
//
// A record is a line "boot_ns token id": the boot clock in nanoseconds, the token, and who writes,
// without blanks. A worker writes one before each thing it does as leader, each with one write
// call. Empty lines and those that begin with # are skipped. A last line without its end is skipped
// too: its worker was killed while it wrote.
func Read(name string, records ...io.Reader) ([]Interval, error) {
	var acts []Act
	for i, r := range records {
		err := eachLine(r, func(text string) error {
			a, err := parseAct(text)
			acts = append(acts, a)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("history of %q, record %d: %w", name, i+1, err)
		}
	}
	terms, _ := Terms(name, acts, 0)
	return terms, nil
}

// eachLine calls do with each whole line that is not empty or a comment.
func eachLine(r io.Reader, do func(text string) error) error {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if text = strings.TrimSpace(text); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if err := do(text); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// parseAct reads "boot_ns token id".
func parseAct(text string) (a Act, err error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return a, fmt.Errorf("%q is not a record: want boot_ns token id", text)
	}
	ns, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return a, fmt.Errorf("%q: the time is not in nanoseconds: %w", text, err)
	}
	a.At, a.Who = time.Duration(ns), fields[2]
	if a.Token, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return a, fmt.Errorf("%q: the token is not a number: %w", text, err)
	}
	return a, nil
}
