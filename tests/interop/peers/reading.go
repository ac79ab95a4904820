package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// reading is what to read with read_committed, and the group whose offset of partition 0 is printed then.
type reading struct {
	topic, group      string
	partitions, count int
}

// read prints each record as `record`, partition, offset, timestamp, key, value, headers (`name=value`, joined by commas),
// separated by tabs, bytes in hexadecimal or `null`; then `committed` and the group's offset. The arguments are client, topic,
// group, number of partitions, number of records.
func read(servers []string, arguments []string) {
	partitions, err := strconv.Atoi(arguments[3])
	fail(err)
	count, err := strconv.Atoi(arguments[4])
	fail(err)
	what := reading{arguments[1], arguments[2], partitions, count}
	if arguments[0] == "sarama" {
		(&saramaClient{servers}).read(what)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		(&franzClient{servers}).read(ctx, what)
	}
}

func inHex(bytes []byte) string {
	if bytes == nil {
		return "null"
	}
	return hex.EncodeToString(bytes)
}

func printRecord(partition int32, offset int64, at time.Time, key, value []byte, headers []string) {
	fmt.Printf("record\t%d\t%d\t%d\t%s\t%s\t%s\n",
		partition, offset, at.UnixMilli(), inHex(key), inHex(value), strings.Join(headers, ","))
}

func (c *saramaClient) read(what reading) {
	config := c.config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Return.Errors = true
	client, err := sarama.NewClient(c.servers, config)
	fail(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	fail(err)
	messages, failed := make(chan *sarama.ConsumerMessage), make(chan error)
	for i := range what.partitions {
		partition, err := consumer.ConsumePartition(what.topic, int32(i), sarama.OffsetOldest)
		fail(err)
		go func() {
			for message := range partition.Messages() {
				messages <- message
			}
		}()
		go func() {
			for err := range partition.Errors() {
				failed <- err
			}
		}()
	}
	end := time.After(limit)
	for range what.count {
		select {
		case m := <-messages:
			var headers []string
			for _, header := range m.Headers {
				headers = append(headers, inHex(header.Key)+"="+inHex(header.Value))
			}
			printRecord(m.Partition, m.Offset, m.Timestamp, m.Key, m.Value, headers)
		case err := <-failed:
			fail(err)
		case <-end:
			fail(fmt.Errorf("fewer than %d records came", what.count))
		}
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	fail(err)
	offsets, err := admin.ListConsumerGroupOffsets(what.group, map[string][]int32{what.topic: {0}})
	fail(err)
	fmt.Printf("committed\t%d\n", offsets.GetBlock(what.topic, 0).Offset)
}

func (c *franzClient) read(ctx context.Context, what reading) {
	from := map[int32]kgo.Offset{}
	for i := range what.partitions {
		from[int32(i)] = kgo.NewOffset().AtStart()
	}
	client := c.open(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{what.topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(200*time.Millisecond),
	)
	defer client.Close()
	for left := what.count; left > 0; {
		fetches := client.PollFetches(ctx)
		fail(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			var headers []string
			for _, header := range record.Headers {
				headers = append(headers, inHex([]byte(header.Key))+"="+inHex(header.Value))
			}
			printRecord(record.Partition, record.Offset, record.Timestamp, record.Key, record.Value, headers)
			left--
		})
	}
	request, group := kmsg.NewPtrOffsetFetchRequest(), kmsg.NewOffsetFetchRequestGroup()
	group.Group = what.group
	request.Groups = append(request.Groups, group)
	response, err := request.RequestWith(ctx, client)
	fail(err)
	for _, topic := range response.Groups[0].Topics {
		for _, partition := range topic.Partitions {
			fmt.Printf("committed\t%d\n", partition.Offset)
		}
	}
}
