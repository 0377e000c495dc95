package main

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
)

// person returns who asks a leader to give up, for the history: --id, or else user@host. Behind
// sudo it is who called sudo.
func (a *app) person() string {
	if a.id != "" {
		return a.id
	}
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if sudo := os.Getenv("SUDO_USER"); sudo != "" && os.Getuid() == 0 {
		name = sudo
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	s := strings.ToValidUTF8(name+"@"+host, "")
	for len(s) > primacy.MaxName {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
