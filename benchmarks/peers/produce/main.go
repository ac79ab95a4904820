// The produce benchmark for sarama and franz-go, as `benchmarks.produce` is for clients in Python.
//
// Arguments: the client, and the settings as a JSON object. The output is a JSON object with figures. In the mode
// "stopped" it prints `ready` when it is connected, and goes on when it reads a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
)

const step = 500

var headers = [][2]string{
	{"trace-id", "4bf92f3577b34da6a3ce929d0e0e4736"}, {"content-type", "application/json"}, {"source", "benchmark"},
}

type settings struct {
	BootstrapServers string  `json:"bootstrap_servers"`
	Topic            string  `json:"topic"`
	Mode             string  `json:"mode"`
	Values           string  `json:"values"`
	Size             int     `json:"size"`
	Codec            string  `json:"codec"`
	Headers          bool    `json:"headers"`
	Seconds          float64 `json:"seconds"`
	Callers          int     `json:"callers"`
	BatchBytes       int     `json:"batch_bytes"`
	Linger           float64 `json:"linger"`
	BufferBytes      int     `json:"buffer_bytes"`
}

func (s settings) servers() []string { return strings.Split(s.BootstrapServers, ",") }

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// producer is what both clients do: send waits for the acknowledgement, enqueue for room, flush for all.
type producer interface {
	send(value []byte)
	enqueue(value []byte)
	flush()
}

// --- sarama ----------------------------------------------------------------------------------------------------------

type ibm struct {
	topic    string
	headers  []sarama.RecordHeader
	producer sarama.AsyncProducer
	written  int64
	acked    atomic.Int64
	done     chan struct{}
	wanted   atomic.Int64
}

func newSarama(given settings) *ibm {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1 // its idempotent producer needs it
	config.Producer.Partitioner = sarama.NewRandomPartitioner
	config.Producer.Return.Successes = true
	if given.Linger > 0 { // with bytes alone a batch would wait until it is full
		config.Producer.Flush.Bytes = given.BatchBytes
		config.Producer.Flush.Frequency = seconds(given.Linger)
	}
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	config.Producer.Compression = codecs[given.Codec]
	client, err := sarama.NewAsyncProducer(given.servers(), config)
	fail(err)
	p := &ibm{topic: given.Topic, producer: client, done: make(chan struct{}, 1)}
	p.wanted.Store(-1)
	if given.Headers {
		for _, header := range headers {
			p.headers = append(p.headers, sarama.RecordHeader{Key: []byte(header[0]), Value: []byte(header[1])})
		}
	}
	go func() {
		for err := range client.Errors() {
			fail(err)
		}
	}()
	go func() {
		for message := range client.Successes() {
			if waiter, ok := message.Metadata.(chan struct{}); ok {
				waiter <- struct{}{}
			}
			if p.acked.Add(1) == p.wanted.Load() {
				p.done <- struct{}{}
			}
		}
	}()
	return p
}

func (p *ibm) message(value []byte) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: p.topic, Value: sarama.ByteEncoder(value), Headers: p.headers}
}

func (p *ibm) send(value []byte) {
	message, waiter := p.message(value), make(chan struct{}, 1)
	message.Metadata = waiter
	atomic.AddInt64(&p.written, 1)
	p.producer.Input() <- message
	<-waiter
}

func (p *ibm) enqueue(value []byte) {
	p.written++
	p.producer.Input() <- p.message(value)
}

func (p *ibm) flush() {
	p.wanted.Store(p.written)
	if p.acked.Load() < p.written {
		<-p.done
	}
}

// --- franz-go --------------------------------------------------------------------------------------------------------

type franz struct {
	topic   string
	headers []kgo.RecordHeader
	client  *kgo.Client
}

func newFranz(given settings) *franz {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(given.servers()...), kgo.DefaultProduceTopic(given.Topic), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(int32(given.BatchBytes)), kgo.ProducerLinger(seconds(given.Linger)),
		kgo.ProducerBatchCompression(codecs[given.Codec]),
		kgo.MaxBufferedBytes(given.BufferBytes), kgo.MaxBufferedRecords(10_000_000),
	)
	fail(err)
	p := &franz{topic: given.Topic, client: client}
	if given.Headers {
		for _, header := range headers {
			p.headers = append(p.headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
	}
	return p
}

func (p *franz) record(value []byte) *kgo.Record {
	return &kgo.Record{Value: value, Headers: p.headers}
}

func (p *franz) send(value []byte) {
	fail(p.client.ProduceSync(context.Background(), p.record(value)).FirstErr())
}

func (p *franz) enqueue(value []byte) {
	p.client.Produce(context.Background(), p.record(value), func(_ *kgo.Record, err error) { fail(err) })
}

func (p *franz) flush() { fail(p.client.Flush(context.Background())) }

// --- measuring -------------------------------------------------------------------------------------------------------

func readValues(given settings) [][]byte {
	data, err := os.ReadFile(given.Values)
	fail(err)
	var values [][]byte
	for start := 0; start+given.Size <= len(data); start += given.Size {
		values = append(values, data[start:start+given.Size])
	}
	return values
}

func cpu() float64 {
	var usage unix.Rusage
	fail(unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// bulk writes until the end and returns the number of records.
func bulk(p producer, values [][]byte, end time.Time) int {
	written := 0
	for time.Now().Before(end) {
		for range step {
			p.enqueue(values[written%len(values)])
			written++
		}
	}
	p.flush()
	return written
}

// waiting writes with this number of callers, and returns the latencies of all records in seconds.
func waiting(p producer, values [][]byte, end time.Time, callers int) []float64 {
	var all []float64
	var lock sync.Mutex
	var group sync.WaitGroup
	for range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			var own []float64
			for {
				start := time.Now()
				if !start.Before(end) {
					break
				}
				p.send(values[len(own)%len(values)])
				own = append(own, time.Since(start).Seconds())
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, own...)
		}()
	}
	group.Wait()
	return all
}

// peak returns the peak resident memory in bytes.
func peak() int {
	status, err := os.ReadFile("/proc/self/status")
	fail(err)
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmHWM:" {
			kib, err := strconv.Atoi(fields[1])
			fail(err)
			return kib * 1024
		}
	}
	return 0
}

// fill writes to a stopped broker until the time is over, prints the memory, and ends the process.
func fill(p producer, values [][]byte, given settings) {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	fail(err)
	before := peak()
	var written atomic.Int64
	go func() {
		for {
			p.enqueue(values[int(written.Load())%len(values)])
			written.Add(1)
		}
	}()
	time.Sleep(seconds(given.Seconds))
	report(map[string]any{"before": before, "peak": peak(), "records": written.Load() + 1})
	os.Exit(0)
}

func report(figures map[string]any) {
	out, err := json.Marshal(figures)
	fail(err)
	fmt.Println(string(out))
}

func main() {
	var given settings
	fail(json.Unmarshal([]byte(os.Args[2]), &given))
	values := readValues(given)
	var p producer
	if os.Args[1] == "sarama" {
		p = newSarama(given)
	} else {
		p = newFranz(given)
	}
	p.send(values[0])
	if given.Mode == "stopped" {
		fill(p, values, given)
	}
	runtime.GC()
	usedBefore, start := cpu(), time.Now()
	end := start.Add(seconds(given.Seconds))
	figures := map[string]any{}
	written := 0
	switch given.Mode {
	case "bulk":
		written = bulk(p, values, end)
	default:
		callers := 1
		if given.Mode == "concurrent" {
			callers = given.Callers
		}
		latencies := waiting(p, values, end, callers)
		written = len(latencies)
		sort.Float64s(latencies)
		figures["p50"], figures["p99"] = latencies[written/2], latencies[written*99/100]
	}
	figures["seconds"], figures["cpu_seconds"] = time.Since(start).Seconds(), cpu()-usedBefore
	figures["records"] = written + 1
	report(figures)
}
