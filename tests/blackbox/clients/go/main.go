// grpc-go as a client: `mixed_go <port>` makes calls of every kind on one connection, side by side, and says `ok` when
// each got the answer that is its own. Messages are written by hand: bytes in, bytes out.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
)

const (
	decide  = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	check   = "/grpc.health.v1.Health/Check"
	watch   = "/grpc.health.v1.Health/Watch"
	unknown = "/no.Such/Method"
	// No call takes so long that is answered.
	patience = 20 * time.Second
)

var (
	serving = []byte{8, 1}
	kinds   = []func(*grpc.ClientConn, int) error{
		decided, healthy, decided, watched, decided, missing, decided, missingStream, decided, compressed, decided, broken,
	}
)

// The codec of bytes that are messages already.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}
func (raw) Name() string { return "proto" }

func field(number byte, payload []byte) []byte {
	return append([]byte{number<<3 | 2, byte(len(payload))}, payload...)
}

// Users are from u1 to u7, and each has a limit of its own: so many millions.
func question(user int) []byte {
	entry := append(field(1, []byte("user")), field(2, fmt.Appendf(nil, "u%d", user))...)
	return append(field(1, []byte("shop")), field(2, field(1, entry))...)
}

func call(connection *grpc.ClientConn, method string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var answer []byte
	err := connection.Invoke(ctx, method, &request, &answer, options...)
	return answer, err
}

func decided(connection *grpc.ClientConn, number int) error {
	user := number%7 + 1
	answer, err := call(connection, decide, question(user))
	limit := binary.AppendUvarint(nil, uint64(user)*1_000_000)
	if err != nil || !bytes.HasPrefix(answer, serving) || !bytes.Contains(answer, limit) {
		return fmt.Errorf("decision about u%d: %x, %w", user, answer, err)
	}
	return nil
}

func healthy(connection *grpc.ClientConn, _ int) error {
	answer, err := call(connection, check, nil)
	if err != nil || !bytes.Equal(answer, serving) {
		return fmt.Errorf("health: %x, %w", answer, err)
	}
	return nil
}

func watched(connection *grpc.ClientConn, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watch)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	var request, answer []byte
	if err := stream.SendMsg(&request); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if err := stream.CloseSend(); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if err := stream.RecvMsg(&answer); err != nil || !bytes.Equal(answer, serving) {
		return fmt.Errorf("watch: %x, %w", answer, err)
	}
	return nil
}

func refused(what string, err error, expected codes.Code) error {
	if status.Code(err) != expected {
		return fmt.Errorf("%s: %w, and not %s", what, err, expected)
	}
	return nil
}

func missing(connection *grpc.ClientConn, _ int) error {
	_, err := call(connection, unknown, question(1))
	return refused("unknown method", err, codes.Unimplemented)
}

// The call is answered though it is not ended.
func missingStream(connection *grpc.ClientConn, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, unknown)
	if err != nil {
		return fmt.Errorf("unknown stream: %w", err)
	}
	request, answer := question(1), []byte(nil)
	// The answer may be there before.
	if err := stream.SendMsg(&request); err != nil && err != io.EOF {
		return fmt.Errorf("unknown stream: %w", err)
	}
	return refused("unknown stream", stream.RecvMsg(&answer), codes.Unimplemented)
}

func compressed(connection *grpc.ClientConn, _ int) error {
	_, err := call(connection, decide, question(1), grpc.UseCompressor(gzip.Name))
	return refused("compressed message", err, codes.Unimplemented)
}

func broken(connection *grpc.ClientConn, _ int) error {
	_, err := call(connection, decide, []byte{0xff, 0xff})
	return refused("broken message", err, codes.InvalidArgument)
}

// So many callers on one connection, each with its next call once the last is answered.
func mix(port string, callers, calls int) error {
	connection, err := grpc.NewClient("127.0.0.1:"+port,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		return err
	}
	defer connection.Close()
	failed := make(chan error, callers)
	var asking sync.WaitGroup
	for caller := range callers {
		asking.Go(func() {
			for number := range calls {
				if err := kinds[(caller+number)%len(kinds)](connection, number); err != nil {
					failed <- fmt.Errorf("of %d callers, caller %d, call %d: %w", callers, caller, number, err)
					return
				}
			}
		})
	}
	asking.Wait()
	close(failed)
	return <-failed
}

func main() {
	for _, callers := range []int{2, 3, 16, 64} {
		if err := mix(os.Args[1], callers, 3_000/callers); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("ok")
}
