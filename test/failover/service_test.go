//go:build linux

package failover

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// What the service is told.
const (
	listenEnv = "FAILOVER_LISTEN" // where it listens; set: this binary is the service
	blindEnv  = "FAILOVER_BLIND"  // it does not ask for its term
)

// answer is what the service says.
type answer struct {
	Token uint64        `json:"token,string"`
	ID    string        `json:"id"`
	At    time.Duration `json:"at,string"` // before it asked for its right
}

// serviceMain is the command of `primacy run`: it answers while its term lasts.
func serviceMain() error {
	token, err := strconv.ParseUint(os.Getenv("PRIMACY_TOKEN"), 10, 64)
	if err != nil {
		return err
	}
	blind := os.Getenv(blindEnv) != ""
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		a := answer{token, os.Getenv("PRIMACY_ID"), boottime.Now()}
		if !blind && a.At >= deadline(token) {
			http.Error(w, "this node leads no more", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a)
	})
	s := &http.Server{Addr: os.Getenv(listenEnv), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return s.ListenAndServe()
}

// deadline reads what `primacy run` has written for its command: until when it may act.
func deadline(token uint64) time.Duration {
	var right struct {
		Token    uint64        `json:"token,string"`
		Deadline time.Duration `json:"deadline_boot_ns,string"`
	}
	b, err := os.ReadFile(os.Getenv("PRIMACY_STATE_FILE"))
	if err != nil || json.Unmarshal(b, &right) != nil || right.Token != token {
		return 0
	}
	return right.Deadline
}

// check is how the service fails.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(99)
	}
}
