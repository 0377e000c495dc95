package filefence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/filefence"
)

func Example() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "example-")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config.json")

	old := fence.Stamp{Name: "config", Token: 7} // in a program: fence.Of(term)
	successor := fence.Stamp{Name: "config", Token: 9}

	fmt.Println(filefence.Write(ctx, path, []byte("by the first leader"), 0o644, old))
	data, _ := filefence.Read(ctx, path, successor) // raises the fence, then reads
	fmt.Println(filefence.Write(ctx, path, append(data, ", extended by the second"...), 0o644, successor))

	err := filefence.Write(ctx, path, []byte("late"), 0o644, old)
	fmt.Println(errors.Is(err, fence.ErrStale), err)
	data, _ = os.ReadFile(path)
	fmt.Printf("%s\n", data)
	// Output:
	// <nil>
	// <nil>
	// true fence "config": token 7 is stale: a newer leader has been here, under token 9
	// by the first leader, extended by the second
}
