package embedded

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const logLimit = 1 << 20 // bytes of etcd.log, after which it becomes etcd.log.1

// logFile is etcd's log, bounded. Its writes come one at a time: zapcore.Lock sees to it.
type logFile struct {
	path string
	file *os.File
	size int64
}

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.open()
}

func (l *logFile) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := l.file.Stat()
	if err != nil {
		l.file.Close()
		return err
	}
	l.size = info.Size()
	return nil
}

// Write appends p. A log that cannot be written must not end the store, so it answers with success.
func (l *logFile) Write(p []byte) (int, error) {
	if l.size > 0 && l.size+int64(len(p)) > logLimit {
		l.file.Close()
		_ = os.Rename(l.path, l.path+".1")
		if l.open() != nil {
			l.size = 0
			return len(p), nil
		}
	}
	n, _ := l.file.Write(p)
	l.size += int64(n)
	return len(p), nil
}

func (l *logFile) Sync() error  { return nil }
func (l *logFile) Close() error { return l.file.Close() }

// newLogger is etcd's logger: warnings and worse, and whatever etcd regards as its end breaks only
// the store.
func newLogger(out *logFile, b *breakage) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(out), zapcore.WarnLevel)
	return zap.New(core, zap.WithFatalHook(b), zap.WithPanicHook(b), zap.ErrorOutput(zapcore.Lock(out)))
}

// breakage is the first thing that made etcd give up.
type breakage struct {
	happened chan struct{}
	once     sync.Once
	why      error
}

func newBreak() *breakage { return &breakage{happened: make(chan struct{})} }

// OnWrite is called in the goroutine that gave up, and ends it, running what it deferred. To return
// is not possible: its caller counts on being dead. To panic would end the whole process with a
// stack trace, and the user's work with it.
func (b *breakage) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	b.once.Do(func() {
		b.why = errors.New(e.Message)
		for _, f := range fields {
			if err, ok := f.Interface.(error); ok {
				b.why = fmt.Errorf("%s: %w", e.Message, err)
			}
		}
		close(b.happened)
	})
	zapcore.WriteThenGoexit.OnWrite(e, fields)
}

// err is why etcd gave up, or nil.
func (b *breakage) err() error {
	select {
	case <-b.happened:
		return b.why
	default:
		return nil
	}
}
