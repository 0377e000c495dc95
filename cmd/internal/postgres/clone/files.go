package clone

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// copyFile makes a durable copy; its name becomes durable with its directory.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(path, append(b, '\n'))
}

// readJSON says whether the file is there.
func readJSON(path string, v any) (bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return true, unfit("%s cannot be read: %w", path, err)
	}
	return true, nil
}
