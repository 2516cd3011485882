package rest

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// floorRequest and floorLease are what encoding/json needs for the same: it takes names
// of any case, and of two members with one name the last.
type floorRequest struct {
	Selector    map[string]string `json:"selector"`
	Cluster     string            `json:"cluster"`
	Target      string            `json:"target"`
	TTLSeconds  int64             `json:"ttlSeconds"`
	WaitSeconds int64             `json:"waitSeconds"`
}

type floorLease struct {
	LeaseID    string     `json:"leaseID"`
	Client     string     `json:"client"`
	Target     string     `json:"target"`
	ExpiresAt  time.Time  `json:"expiresAt"`
	TTLSeconds int64      `json:"ttlSeconds"`
	Proxy      floorProxy `json:"proxy"`
}

type floorProxy struct {
	Cluster       string            `json:"cluster"`
	Namespace     string            `json:"namespace"`
	Name          string            `json:"name"`
	UID           string            `json:"uid"`
	Protocol      string            `json:"protocol"`
	Host          string            `json:"host"`
	Port          int               `json:"port"`
	URL           string            `json:"url"`
	Attributes    map[string]string `json:"attributes"`
	Healthy       bool              `json:"healthy"`
	Phase         string            `json:"phase"`
	LatencyMillis int64             `json:"latencyMillis,omitempty"`
	ActiveLeases  int               `json:"activeLeases"`
	MaxLeases     int               `json:"maxLeases,omitempty"`
}

// BenchmarkDecode reads the body of an acquire; docs/decisions/0017-codec.md reads it.
func BenchmarkDecode(b *testing.B) {
	for _, in := range []struct{ name, body string }{
		{"typical", `{"selector":{"region":"eu"},"target":"example.com","ttlSeconds":300}`},
		{"empty", `{}`},
	} {
		b.Run(in.name+"/ours", func(b *testing.B) {
			b.ReportAllocs()
			text := &body{}
			for b.Loop() {
				text.data.Reset()
				text.data.WriteString(in.body)
				var into acquireRequest
				if err := text.decode(&into); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(in.name+"/encoding-json", func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(in.body)
			for b.Loop() {
				d := json.NewDecoder(bytes.NewReader(text))
				d.DisallowUnknownFields()
				var into floorRequest
				if err := d.Decode(&into); err != nil {
					b.Fatal(err)
				}
				if _, err := d.Token(); err != io.EOF {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncode writes a lease of a Proxy with four attributes.
func BenchmarkEncode(b *testing.B) {
	p := &fleet.Proxy{
		Key: fleet.Key{Cluster: "eu-west", Namespace: "crawl", Name: "eu-1"}, UID: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
		Protocol: "http", Host: "10.2.3.4", Port: 3128, Provisioned: true, MaxLeases: 10,
		NeedsCredentials: true, Credentials: &fleet.Credentials{Username: "user", Password: "pass"},
		Attributes: map[string]string{"region": "eu", "tier": "dc", "asn": "64500", "provider": "acme"},
		Verdict:    fleet.Verdict{Health: fleet.Healthy, Latency: 41 * time.Millisecond},
	}
	l := &lease.Lease{
		ID: "4ZQ3XJ7VTRW2K5NC6BYDGHLMPA", Client: "default", Target: "example.com", TTL: 5 * time.Minute,
		ExpiresAt: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC), Proxy: p, Now: p, Active: 1,
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var text []byte
		for b.Loop() {
			text = appendLease(text[:0], l)
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		var text bytes.Buffer
		for b.Loop() {
			text.Reset()
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			if err := e.Encode(floorLease{l.ID, l.Client, l.Target, l.ExpiresAt, int64(l.TTL / time.Second), floorProxy{
				p.Cluster, p.Namespace, p.Name, p.UID, p.Protocol, p.Host, p.Port, "http://user:pass@10.2.3.4:3128", p.Attributes,
				p.Offerable(), p.Phase(), p.Verdict.LatencyMillis(), l.Active, p.MaxLeases,
			}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
