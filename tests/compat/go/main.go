// The official Go client as a program: send or consume, one line a result, fields separated by tabs.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func main() {
	rlog.SetLogLevel("error")
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	switch os.Args[1] {
	case "send":
		send(os.Args[2], os.Args[3], count)
	case "consume":
		consume(os.Args[2], os.Args[3], count)
	}
}

func send(nameServer, topic string, count int) {
	p, err := rocketmq.NewProducer(producer.WithNameServer([]string{nameServer}), producer.WithGroupName("go-producer"))
	check(err)
	check(p.Start())
	for i := 0; i < count; i++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("body-%d", i))).WithTag("go").WithKeys([]string{fmt.Sprintf("go-%d", i)})
		result, err := p.SendSync(context.Background(), message)
		check(err)
		fmt.Printf("SENT\t%d\t%s\t%d\t%d\n", result.Status, result.MsgID, result.MessageQueue.QueueId, result.QueueOffset)
	}
	check(p.Shutdown())
}

func consume(nameServer, topic string, count int) {
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{nameServer}), consumer.WithGroupName("go-consumer"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	var mutex sync.Mutex
	seen := map[string]bool{}
	done := make(chan bool, 1)
	check(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, message := range messages {
			fmt.Printf("GOT\t%s\t%s\n", message.MsgId, message.Body)
			seen[message.MsgId] = true
		}
		if len(seen) >= count {
			select {
			case done <- true:
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	select {
	case <-done:
	case <-time.After(40 * time.Second):
		fmt.Fprintln(os.Stderr, "messages are missing")
		os.Exit(4)
	}
	check(c.Shutdown())
	fmt.Printf("COMPLETE\t%d\n", len(seen))
}
