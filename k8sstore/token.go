package k8sstore

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// rereads is how often a file with a token is read again: kubelet replaces it when four fifths of
// its time have passed, and the old one goes on being good for minutes.
const rereads = 10 * time.Second

// FileToken returns what reads the token from a file, again every 10 s and when it is refused.
// While the file cannot be read the last token is used.
func FileToken(path string) TokenSource {
	var mu sync.Mutex
	var token string
	var read time.Time
	return func(_ context.Context, refused string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != "" && token != refused && time.Since(read) < rereads {
			return token, nil
		}
		text, err := os.ReadFile(path)
		switch now := strings.TrimSpace(string(text)); {
		case err == nil && now != "":
			token, read = now, time.Now()
		case token == "" && err == nil:
			return "", fmt.Errorf("the token in %s is empty", path)
		case token == "":
			return "", err
		}
		return token, nil
	}
}
