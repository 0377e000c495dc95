package top

import (
	"io"
	"time"
	"unicode"
	"unicode/utf8"
)

// A key is its letter, or one of these names.
const (
	keyUp    = "up"
	keyDown  = "down"
	keyPgUp  = "page up"
	keyPgDn  = "page down"
	keyHome  = "home"
	keyEnd   = "end"
	keyEnter = "enter"
	keyEsc   = "esc"
	keyBack  = "backspace"
	keyClear = "^U"
	keyDraw  = "^L"
	keyStop  = "^Z"
	keyQuit  = "^C"
)

var control = map[byte]string{3: keyQuit, 4: keyQuit, 8: keyBack, 9: keyDown, 10: keyEnter, 12: keyDraw, 13: keyEnter,
	21: keyClear, 26: keyStop,
	127: keyBack, 14: keyDown, 16: keyUp, 2: keyPgUp, 6: keyPgDn}

// sequences are what keys send behind ESC, in the ways terminals have.
var sequences = map[string]string{
	"[A": keyUp, "OA": keyUp, "[B": keyDown, "OB": keyDown, "[5~": keyPgUp, "[6~": keyPgDn,
	"[H": keyHome, "OH": keyHome, "[1~": keyHome, "[7~": keyHome, "[F": keyEnd, "OF": keyEnd, "[4~": keyEnd,
	"[8~": keyEnd, "OM": keyEnter,
}

// split takes the first key from what was read, and returns what is left. Ok is false where the
// rest of the key has not come yet; more says whether it may still. A sequence that is not known is
// swallowed whole: its letters are no orders.
func split(b []byte, more bool) (key string, rest []byte, ok bool) {
	switch {
	case len(b) == 0:
		return "", b, false
	case b[0] == 0x1b:
		return splitEscape(b, more)
	case b[0] < ' ' || b[0] == 0x7f:
		return control[b[0]], b[1:], true
	case !utf8.FullRune(b) && more:
		return "", b, false
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return "", b[n:], true
	}
	return string(r), b[n:], true
}

func splitEscape(b []byte, more bool) (string, []byte, bool) {
	if len(b) == 1 || b[1] != '[' && b[1] != 'O' {
		return keyEsc, b[1:], len(b) > 1 || !more
	}
	end := 2
	for end < len(b) && b[1] == '[' && (b[end] < '@' || b[end] > '~') && end < 32 {
		end++
	}
	if end >= len(b) {
		if more {
			return "", b, false
		}
		return "", nil, true
	}
	return sequences[string(b[1:end+1])], b[end+1:], true
}

// escapeWait is how long the rest of a sequence is waited for: an ESC of its own is a key too.
const escapeWait = 80 * time.Millisecond

// readKeys sends each key that is pressed, until the terminal is gone; then it closes keys.
func readKeys(in io.Reader, keys chan<- string) {
	defer close(keys)
	read := make(chan []byte)
	go func() {
		defer close(read)
		for {
			b := make([]byte, 256)
			n, err := in.Read(b)
			if n > 0 {
				read <- b[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	var pending []byte
	for {
		var wait <-chan time.Time
		if len(pending) > 0 {
			wait = time.After(escapeWait)
		}
		more := true
		select {
		case b, ok := <-read:
			if !ok {
				return
			}
			pending = append(pending, b...)
		case <-wait:
			more = false
		}
		for {
			key, rest, ok := split(pending, more)
			if !ok {
				break
			}
			if pending = rest; key != "" {
				keys <- key
			}
		}
	}
}
