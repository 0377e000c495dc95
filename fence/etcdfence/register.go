package etcdfence

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// Raise is for keys in a cluster that does not keep the election. It writes s into key, unless a
// larger token is there, and returns a guard whose Txns apply only while key holds s. Call it once
// a term, before the first read of what will be written. Two resources may share a key; each
// election needs its own. Its error is a *fence.StaleError or a *fence.OriginError if s has no say
// any more; after any other whether it was raised is unknown, repeat the call. The key's value is
// the stamp as JSON in one spelling; one that was spelt otherwise by hand is written anew.
func Raise(ctx context.Context, kv clientv3.KV, key string, s fence.Stamp) (*Guard, error) {
	text, err := encode(key, s)
	if err != nil {
		return nil, err
	}
	for {
		resp, err := kv.Get(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("fence %q: read %s: %w", s.Name, key, err)
		}
		last, err := decode(key, resp)
		if err != nil {
			return nil, err
		}
		if err := s.After(last); err != nil {
			return nil, err
		}
		if len(resp.Kvs) > 0 && string(resp.Kvs[0].Value) == text { // one spelt otherwise would fail the guard's compare
			return registerGuard(kv, key, text, s), nil
		}
		rev := int64(0)
		if len(resp.Kvs) > 0 {
			rev = resp.Kvs[0].ModRevision
		}
		won, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, text)).Commit()
		if err != nil {
			return nil, fmt.Errorf("fence %q: write %s: %w", s.Name, key, err)
		}
		if won.Succeeded {
			return registerGuard(kv, key, text, s), nil
		}
	}
}

// Adopt makes s count, whatever key holds. It is for an operator, after the store of the election
// was restored or replaced, who has made sure that no leader of the old store runs.
func Adopt(ctx context.Context, kv clientv3.KV, key string, s fence.Stamp) error {
	text, err := encode(key, s)
	if err != nil {
		return err
	}
	if _, err := kv.Put(ctx, key, text); err != nil {
		return fmt.Errorf("fence %q: write %s: %w", s.Name, key, err)
	}
	return nil
}

func registerGuard(kv clientv3.KV, key, text string, s fence.Stamp) *Guard {
	return &Guard{kv: kv, stamp: s,
		holds: clientv3.Compare(clientv3.Value(key), "=", text),
		why:   clientv3.OpGet(key),
		judge: func(r *clientv3.GetResponse) error {
			last, err := decode(key, r)
			if err == nil {
				err = s.After(last)
			}
			if err == nil {
				// Somebody removed the key, wrote a smaller token or spelt ours otherwise: the
				// cluster was restored, or an operator erred.
				err = fmt.Errorf("fence %q: %w %d: %s holds %d: ask the term's Check, and only if it says yes Raise it and read again",
					s.Name, fence.ErrNotRaised, s.Token, key, last.Token)
			}
			return err
		}}
}

// encode returns what key holds while s is the newest stamp. One spelling for each stamp: it is
// compared byte by byte.
func encode(key string, s fence.Stamp) (string, error) {
	if err := s.Valid(); err != nil {
		return "", err
	}
	if key == "" {
		return "", fmt.Errorf("etcdfence: %w: the fence of %q has no key", primacy.ErrInvalid, s.Name)
	}
	text, err := json.Marshal(s)
	return string(text), err
}

func decode(key string, r *clientv3.GetResponse) (s fence.Stamp, err error) {
	if len(r.Kvs) == 0 {
		return s, nil
	}
	if err = json.Unmarshal(r.Kvs[0].Value, &s); err == nil {
		err = s.Valid()
	}
	if err != nil {
		return fence.Stamp{}, fmt.Errorf("etcdfence: %s holds no stamp: %w: choose another key, or have an operator Adopt a token", key, err)
	}
	return s, nil
}
