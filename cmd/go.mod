module github.com/primacy-go/primacy/cmd

go 1.26.0
