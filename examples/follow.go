// Follows a feed over HTTP with nothing but Go's standard library: every change once, in order, also after a restart.
//
// usage: go run follow.go http://127.0.0.1:8787 FEED SHARD
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// place is where to go on, and in which incarnation of the database that is.
type place struct {
	Cursor      string `json:"cursor"`
	Incarnation string `json:"incarnation"`
}

// page has the changes after a cursor. Rows stay as the database wrote them: a number may have more digits than a float64.
type page struct {
	Changes []struct {
		Cursor string          `json:"cursor"`
		Op     string          `json:"op"`
		Key    json.RawMessage `json:"key"`
		Row    json.RawMessage `json:"row"`
	} `json:"changes"`
	Next        string `json:"next"`
	Incarnation string `json:"incarnation"`
}

func load(file string) (there place, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return place{Cursor: "first"}, nil
	}
	if err != nil {
		return there, err
	}
	return there, json.Unmarshal(text, &there)
}

// keep writes beside and moves, so that a crash leaves the old place or the new one.
func keep(file string, there place) error {
	text, err := json.Marshal(there)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// refused is an answer that asking again does not change.
type refused struct{ detail string }

func (r refused) Error() string { return r.detail }

// read waits up to 30 seconds for changes.
func read(client *http.Client, address string, there place) (*page, error) {
	query := url.Values{"after": {there.Cursor}, "wait": {"30000"}}
	request, err := http.NewRequest(http.MethodGet, address+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if token := os.Getenv("CHANGEFEED_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if there.Incarnation != "" {
		// After the database was restored from a backup this is refused, instead of missing changes.
		request.Header.Set("Changefeed-Incarnation", there.Incarnation)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	switch {
	case answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests:
		return nil, fmt.Errorf("the server answered %s", answer.Status)
	case answer.StatusCode != http.StatusOK:
		problem := struct{ Detail string }{Detail: answer.Status}
		_ = json.Unmarshal(text, &problem)
		return nil, refused{problem.Detail}
	}
	found := new(page)
	return found, json.Unmarshal(text, found)
}

func run(server, feed, shard string) error {
	file := fmt.Sprintf("%s-%s.place.json", feed, shard)
	address := fmt.Sprintf("%s/api/feeds/%s/shards/%s/changes", server, url.PathEscape(feed), url.PathEscape(shard))
	there, err := load(file)
	if err != nil {
		return err
	}
	// Longer than the server waits: who says nothing for so long is away.
	client := &http.Client{Timeout: time.Minute}
	for {
		found, err := read(client, address, there)
		if no := (refused{}); errors.As(err, &no) {
			return err
		}
		if err != nil {
			// Away or restarted: the cursor knows where to go on.
			time.Sleep(time.Second)
			continue
		}
		for _, change := range found.Changes {
			// Here the change is handled; then its place is kept.
			fmt.Println(change.Cursor, change.Op, string(change.Row))
			there = place{change.Cursor, found.Incarnation}
			if err := keep(file, there); err != nil {
				return err
			}
		}
		if len(found.Changes) == 0 {
			there.Cursor = found.Next
		}
	}
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: follow SERVER FEED SHARD")
		os.Exit(2)
	}
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	failed := make(chan error, 1)
	go func() { failed <- run(os.Args[1], os.Args[2], os.Args[3]) }()
	select {
	case <-stopped:
		// A change that was printed and not kept is printed again: at least once.
		os.Exit(130)
	case err := <-failed:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
