import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** A push consumer in POP mode that counts what its listener gets. By reflection: releases before 5.0 have no POP, and compile this
 *  file, too. */
public class PopLoad {
    static final AtomicLong COUNT = new AtomicLong();

    /** Arguments: name server, topic, group, seconds that do not count, seconds that do. It prints BEGIN and "POP count seconds". */
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.setPullBatchSize(32);
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            COUNT.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (COUNT.get() == 0) Thread.sleep(10);
        Thread.sleep((long) (Double.parseDouble(args[3]) * 1000));
        System.out.println("BEGIN");
        System.out.flush();
        long begun = System.nanoTime(), before = COUNT.get();
        Thread.sleep((long) (Double.parseDouble(args[4]) * 1000));
        long count = COUNT.get() - before;
        System.out.println("POP\t" + count + "\t" + (System.nanoTime() - begun) / 1e9);
        System.out.flush();
        System.exit(0); // the group is not used again
    }
}
