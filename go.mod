module github.com/primacy-go/primacy

go 1.25.0

require golang.org/x/sys v0.30.0 // indirect
