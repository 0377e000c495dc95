package libpq

import (
	"fmt"
	"os"
	"strings"
)

// Password returns the password of the role, empty where there is no passfile. The file is in
// libpq's format, where each line is host:port:database:user:password. It is an error if libpq
// would ignore the file, and if it has none or several for the role.
func (r Replication) Password() (string, error) {
	file, role := r.Passfile, r.User
	if file == "" {
		return "", nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("others can read %s (mode %04o), and libpq uses no such file: chmod 0600 %[1]s",
			file, mode)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if f := passFields(line); len(f) == 5 && (f[3] == role || f[3] == "*") && f[4] != "" {
			found = append(found, f[4])
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%s has no line for user %s: add *:*:*:%[2]s:PASSWORD", file, role)
	}
	for _, other := range found[1:] {
		if other != found[0] {
			return "", fmt.Errorf("%s has several passwords for user %s: a new cluster gives it one", file, role)
		}
	}
	return found[0], nil
}

// passFields splits a line at its colons. A backslash takes the character after it as it is.
func passFields(line string) []string {
	fields := []string{""}
	for i := 0; i < len(line); i++ {
		last := &fields[len(fields)-1]
		switch {
		case line[i] == '\\' && i+1 < len(line):
			i++
			*last += string(line[i])
		case line[i] == ':' && len(fields) < 5:
			fields = append(fields, "")
		default:
			*last += string(line[i])
		}
	}
	return fields
}
