// quic-go as a client: posts standard input to a URL by HTTP/3 and copies the answer to standard output.
//
//	client CA_FILE URL [cancel-after=EVENTS | streams=COUNT,AT_ONCE]
//
// Standard error gets one JSON line. Exit status 3: the answer broke off; the line says why. With cancel-after, the
// request is cancelled after so many events, and a second request on the same connection shows that it lives on. With
// streams, the request is made so many times on one connection, and whole answers are counted.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	body, err := io.ReadAll(os.Stdin)
	check(err)
	pem, err := os.ReadFile(os.Args[1])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.Close()
	client := &http.Client{Transport: transport}

	if len(os.Args) > 3 && strings.HasPrefix(os.Args[3], "streams=") {
		many(client, body)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", os.Args[2], bytes.NewReader(body))
	check(err)
	request.Header.Set("content-type", "application/json")
	response, err := client.Do(request)
	check(err)
	defer response.Body.Close()

	events := 0
	if len(os.Args) > 3 {
		fmt.Sscanf(strings.TrimPrefix(os.Args[3], "cancel-after="), "%d", &events)
		cancelAfter(response.Body, events)
		cancel()
		say(map[string]any{"proto": response.Proto, "next": next(client)})
		return
	}
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		say(map[string]any{"proto": response.Proto, "error": err.Error()})
		os.Exit(3)
	}
	say(map[string]any{"proto": response.Proto, "status": response.StatusCode})
}

// many asks again and again, and stops at the first answer that is not whole.
func many(client *http.Client, body []byte) {
	var count, atOnce int
	fmt.Sscanf(os.Args[3], "streams=%d,%d", &count, &atOnce)
	var whole atomic.Int64
	var group sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for range count {
		slots <- struct{}{}
		group.Add(1)
		go func() {
			defer group.Done()
			response, err := client.Post(os.Args[2], "application/json", bytes.NewReader(body))
			check(err)
			answer, err := io.ReadAll(response.Body)
			check(err)
			if response.StatusCode != 200 || !bytes.HasSuffix(answer, []byte("data: [DONE]\n\n")) {
				check(fmt.Errorf("status %d, %q", response.StatusCode, answer))
			}
			whole.Add(1)
			<-slots
		}()
	}
	group.Wait()
	say(map[string]any{"proto": "HTTP/3.0", "whole": whole.Load()})
}

func cancelAfter(body io.Reader, events int) {
	seen, buffer := 0, make([]byte, 4096)
	for seen < events {
		n, err := body.Read(buffer)
		check(err)
		seen += bytes.Count(buffer[:n], []byte("\n\n"))
	}
}

// next asks for /healthz on the connection that is open.
func next(client *http.Client) int {
	address, err := url.Parse(os.Args[2])
	check(err)
	address.Path = "/healthz"
	response, err := client.Get(address.String())
	check(err)
	defer response.Body.Close()
	return response.StatusCode
}

func say(what map[string]any) {
	line, _ := json.Marshal(what)
	fmt.Fprintln(os.Stderr, string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
