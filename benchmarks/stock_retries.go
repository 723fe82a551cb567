// As `load` of stock_retries.py, in Go, with grpc-go: PROGRAM '[TARGET, CONFIG, RATE, CALLS]'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // without it, healthCheckConfig does nothing
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

const method = "/benchmark.StockRetries/Call"

// same is a codec of bytes.
type same struct{}

func (same) Name() string                           { return "same" }
func (same) Marshal(bytes any) ([]byte, error)      { return *bytes.(*[]byte), nil }
func (same) Unmarshal(from []byte, bytes any) error { *bytes.(*[]byte) = from; return nil }

// connected is a channel to all addresses of "ipv4:HOST:PORT,HOST:PORT", a kind of
// target that grpc-go has no resolver for.
func connected(target, config string) *grpc.ClientConn {
	var state resolver.State
	for _, address := range strings.Split(strings.TrimPrefix(target, "ipv4:"), ",") {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	source := manual.NewBuilderWithScheme("given")
	source.InitialState(state)
	channel, err := grpc.NewClient("given:///servers", grpc.WithResolvers(source),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(config), grpc.WithDefaultCallOptions(grpc.ForceCodec(same{})))
	if err != nil {
		panic(err)
	}
	within, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	channel.Connect()
	for is := channel.GetState(); is != connectivity.Ready; is = channel.GetState() {
		if !channel.WaitForStateChange(within, is) {
			panic("not connected within 30 s")
		}
	}
	time.Sleep(500 * time.Millisecond) // for the rest of the connections
	return channel
}

// call says how one call ended.
func call(channel *grpc.ClientConn) string {
	within, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return status.Code(channel.Invoke(within, method, &[]byte{}, &[]byte{})).String()
}

func main() {
	var target, config string
	var rate float64
	var calls int
	if err := json.Unmarshal([]byte(os.Args[1]), &[]any{&target, &config, &rate, &calls}); err != nil {
		panic(err)
	}
	channel := connected(target, config)
	halves := [2]map[string]int{{}, {}}
	var lock sync.Mutex
	var running sync.WaitGroup
	began := time.Now()
	for number := range calls {
		send := func() {
			code := call(channel)
			lock.Lock()
			defer lock.Unlock()
			halves[number*2/calls][code]++
		}
		if rate == 0 { // in turn
			send()
			continue
		}
		time.Sleep(time.Until(began.Add(time.Duration(float64(number) / rate * 1e9))))
		running.Go(send)
	}
	running.Wait()
	said, _ := json.Marshal(halves)
	fmt.Println(string(said))
}
