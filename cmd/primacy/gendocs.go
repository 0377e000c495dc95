//go:build docs

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"
)

// With the tag docs the program writes its own manual and exits: `go run -tags docs ./cmd/primacy
// gendocs DIR`. Who only runs it has no use for what this imports. The date in the pages is
// SOURCE_DATE_EPOCH, so that the same source makes the same bytes.
func init() {
	if len(os.Args) == 3 && os.Args[1] == "gendocs" {
		if err := genDocs(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "gendocs:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func genDocs(dir string) error {
	man, reference := filepath.Join(dir, "man1"), filepath.Join(dir, "reference")
	for _, d := range []string{man, reference} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	var date time.Time
	if epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(epoch, 0).UTC()
	}
	root := rootCommand(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "primacy " + version, Manual: "Primacy"}
	if err := doc.GenManTree(root, header, man); err != nil {
		return err
	}
	return doc.GenMarkdownTree(root, reference)
}
