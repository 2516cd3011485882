package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// patience is how long an answer may take. Nothing that is measured takes as long.
const patience = 10 * time.Second

// idLength is that of a lease's id.
const idLength = 26

// wire is one connection, and what is sent on it.
type wire struct {
	net.Conn
	reader *bufio.Reader
	// head is a request's up to its end, but for the first line and the length.
	head   []byte
	buffer []byte
}

func dial(ctx context.Context, s *settings) (*wire, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	// Once for all: to move a deadline at every request would cost more than the rest.
	limit := time.Now().Add(s.warm + 2*s.time + 3*patience)
	if err := conn.SetDeadline(limit); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	head := "Host: " + s.address + "\r\nAuthorization: Bearer " + s.token + "\r\nContent-Type: application/json\r\n"
	return &wire{Conn: conn, reader: bufio.NewReaderSize(conn, 8<<10), head: []byte(head)}, nil
}

// post is a whole request for a lease.
func (w *wire) post(body []byte) []byte {
	return fmt.Appendf(nil, "POST /v1/leases HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", w.head, len(body), body)
}

// acquire sends a request as post made it and appends the new lease's id to ids.
func (w *wire) acquire(request, ids []byte) (more []byte, size int, err error) {
	if _, err := w.Write(request); err != nil {
		return ids, 0, err
	}
	size, body, err := w.read(http.StatusCreated)
	if err != nil {
		return ids, 0, err
	}
	_, id, found := bytes.Cut(body, []byte(`"leaseID":"`))
	if !found || len(id) <= idLength || id[idLength] != '"' {
		return ids, 0, fmt.Errorf("an answer without an id: %.100q", body)
	}
	return append(ids, id[:idLength]...), size, nil
}

// giveBack releases a lease.
func (w *wire) giveBack(id []byte) error {
	w.buffer = append(w.buffer[:0], "DELETE /v1/leases/"...)
	w.buffer = append(append(w.buffer, id...), " HTTP/1.1\r\n"...)
	w.buffer = append(append(w.buffer, w.head...), "\r\n"...)
	if _, err := w.Write(w.buffer); err != nil {
		return err
	}
	_, _, err := w.read(http.StatusNoContent)
	return err
}

// statusError is an answer that was another one than hoped for. The connection is good.
type statusError int

func (e statusError) Error() string { return "answered with status " + strconv.Itoa(int(e)) }

// read takes one answer off the connection; size is that of all of it. The body is good
// until the next read.
func (w *wire) read(wanted int) (size int, body []byte, err error) {
	line, err := w.reader.ReadSlice('\n')
	if err != nil {
		return 0, nil, unexpected(err)
	}
	size = len(line)
	// HTTP/1.1 201 Created
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return size, nil, fmt.Errorf("no answer of HTTP/1.1: %.100q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return size, nil, fmt.Errorf("no status: %.100q", line)
	}
	length := -1
	if status == http.StatusNoContent {
		length = 0
	}
	for {
		line, err := w.reader.ReadSlice('\n')
		if err != nil {
			return size, nil, unexpected(err)
		}
		size += len(line)
		if len(line) <= 2 {
			break
		}
		const name = "Content-Length: "
		if len(line) > len(name) && string(line[:len(name)]) == name {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return size, nil, fmt.Errorf("no length: %.100q", line)
			}
		}
	}
	if length < 0 {
		return size, nil, errors.New("an answer without a Content-Length")
	}
	if body, err = w.reader.Peek(length); err != nil { // it fits: answers are small
		return size, nil, unexpected(err)
	}
	_, _ = w.reader.Discard(length) // which is there
	size += length
	if status != wanted {
		return size, body, statusError(status)
	}
	return size, body, nil
}

// unexpected is what ended the connection: in the middle of a measurement, it should not.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
