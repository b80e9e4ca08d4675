// go-control-plane as a server of rules: `plane <port>` listens on loopback. Each line of its input is a version and a
// limit, `2 10`, which become its snapshot for the node `tests`; a limit of `none` makes a resource without a window,
// which is refused. Each request of the client is a line of its output: `request <version> <refused|taken>`.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	must(err)
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	requests := server.CallbackFuncs{StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
		outcome := "taken"
		if request.ErrorDetail != nil {
			outcome = "refused"
		}
		fmt.Printf("request %q %s\n", request.VersionInfo, outcome)
		return nil
	}}
	grpcServer := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(grpcServer, server.NewServer(context.Background(), snapshots, requests))
	go func() { must(grpcServer.Serve(listener)) }()
	fmt.Println("listening")

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		version, limit, _ := strings.Cut(lines.Text(), " ")
		resources := map[resource.Type][]types.Resource{resource.RateLimitConfigType: {config(limit)}}
		snapshot, err := cache.NewSnapshot(version, resources)
		must(err)
		must(snapshots.SetSnapshot(context.Background(), "tests", snapshot))
	}
}

// A limit of so many requests a day for each user.
func config(limit string) types.Resource {
	policy := &ratelimit.RateLimitPolicy{}
	if limit != "none" {
		requests, err := strconv.ParseUint(limit, 10, 32)
		must(err)
		policy = &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_DAY, RequestsPerUnit: uint32(requests)}
	}
	user := &ratelimit.RateLimitDescriptor{Key: "user", RateLimit: policy}
	return &ratelimit.RateLimitConfig{Name: "shop", Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{user}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
